"""The benchmark with peers. `bench/run` is the way in; python3's standard library is all it needs."""
