"""What is written from the code: the CRD, the chart's schema and the page of conditions."""
