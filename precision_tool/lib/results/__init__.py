"""Tables of results: CSV, msaccucmp's form, noise floors."""
