"""What to rent, for how much, and for how long.

search           rounds of offers, and what the account may spend
refusals         why no offer of a round could be had
offer_table      offers as people read them
price_approval   the question before money is spent, and the price limits that follow from it
lease_limits     until when a cluster may live, from flags and balance
price_terms      price and lease of one cluster
billing_account  whose account pays, and keys that may not be used
quota            what an account may have at once, and requests for more
quota_output     quotas and requests as text, JSON and exit code
"""
