"""What one client does with its own examples."""
