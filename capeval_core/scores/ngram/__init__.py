"""Metrics of n-grams shared by a caption and its references, which need no image: BLEU, ROUGE-L and CIDEr."""
