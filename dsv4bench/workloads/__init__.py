"""Which step runs: geometry, batches, pools, variants, and the attention forward itself."""
