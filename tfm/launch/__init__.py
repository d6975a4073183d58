"""Launch scripts for Slurm, TPU slices and Kubernetes."""
