"""A run as the terminal shows it: its folder's files to one frame."""
