"""Model families: one a file, the sites of its forward pass and its Hugging Face config."""
