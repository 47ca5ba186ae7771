"""Looking at recorded trajectories: in the terminal, and as one page that needs nothing else."""
