"""What commands do with pipeline files: read, check and print them."""
