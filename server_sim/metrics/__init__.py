"""What a trained model is worth: accuracy and retrieval."""
