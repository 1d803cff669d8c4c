"""The models: tensors in, tensors out. No paths, no vocabulary, no optimiser, no loss."""
