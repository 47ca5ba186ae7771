"""When to start, wait for, give up and train on rollouts: decisions over a state and a clock; no input or output."""
