"""Child processes that end with their parent, and what travels to and from them."""
