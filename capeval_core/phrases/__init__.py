"""What to look at in a caption: phrases, sentences, scene graphs, tokens and the consensus of n-grams."""
