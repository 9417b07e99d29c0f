"""Client-assigned groups, as operators see and change them: asked of the instances that coordinate them."""
