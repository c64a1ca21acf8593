"""How the server turns uploads into the next model."""
