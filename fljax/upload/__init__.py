"""What is added to an update before the server may see it."""
