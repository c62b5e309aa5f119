"""The built files of the page: `scripts/report_page` makes them of `scripts/page/`."""
