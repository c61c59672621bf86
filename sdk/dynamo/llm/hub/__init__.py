"""Models of the Hugging Face hub: names, downloads and their errors."""
