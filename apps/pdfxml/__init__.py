"""PDF to XML through a gateway that fails: uploads, conversions, downloads, on nothing but `mulligan`."""
