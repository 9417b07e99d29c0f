"""Shows and changes client-assigned groups through requests to the instances that coordinate them."""
