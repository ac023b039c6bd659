"""Whatever a user hands in, checked once: captions, references, images and other visuals; files of them."""
