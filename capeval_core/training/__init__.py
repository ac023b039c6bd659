"""What `capeval train` needs: tags, negative captions, similar images."""
