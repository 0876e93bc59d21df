"""PDF to XML through a gateway that fails: uploads, conversions and downloads on Mulligan."""
