"""How long a round or a whole run takes."""
