"""The ready jobs, one file each; they share no state."""
