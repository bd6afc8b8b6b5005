"""How a step is run, counted and timed."""
