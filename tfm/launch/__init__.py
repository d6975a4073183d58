"""Launch commands for Slurm, TPU VMs and Kubernetes: one file per scheduler."""
