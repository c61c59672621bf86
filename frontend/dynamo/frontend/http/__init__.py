"""HTTP as the frontend speaks it: how requests come in, and what they may cost until they are understood."""
