"""What one accelerator does: cells that measure, in processes of their own, and a report of all."""
