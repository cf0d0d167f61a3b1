//! Tests of pods.
