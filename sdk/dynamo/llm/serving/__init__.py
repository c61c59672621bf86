"""An engine of a program's own: registered, served, and given the layers above where it asks for them."""
