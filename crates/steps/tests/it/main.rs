//! Flows on a desk without a store: whatever order the world answers in, replay leads to the same place.

mod driver;
