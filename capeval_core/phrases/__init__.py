"""Captions -> phrases, sentences, scene graphs, tokens and the consensus of n-grams."""
