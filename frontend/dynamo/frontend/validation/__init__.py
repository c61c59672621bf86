"""What a request may say beyond the types of its fields: conversations, names of constraints, unknown fields."""
