"""The demo of ``make demo``, its screenshots, and services for trying the product out."""
