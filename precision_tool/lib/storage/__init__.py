"""Where bytes lie and how they are opened: local files, and what is kept between runs."""
