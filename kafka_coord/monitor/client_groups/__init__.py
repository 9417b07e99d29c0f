"""Shows and changes client-assigned groups by requests to the instances that coordinate them."""
