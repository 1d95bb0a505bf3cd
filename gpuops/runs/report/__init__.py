"""A run as one HTML file that needs nothing else: `runs/<run>/report.html`.

report     reads what is home of a run, and writes the page
phases     from the first dollar to the last machine: what took how long, and cost what
curves     losses, from TensorBoard's files or from printed lines; what each node used
scalars    the numbers in TensorBoard's event files
page       the page itself
svg        charts
"""
