"""What to rent, for how much, and for how long.

search           rounds of offers, and what the account may spend
refusals         why no offer of a round could be had
market           several providers asked at once for the same machines
market_table     their offers side by side, with what they cost in all
machine_facts    what a machine of an offer has, as far as its provider tells
offer_check      whether an offer is what was asked for
offer_table      offers as people read them
price_approval   the question before money is spent, and the price limits that follow from it
lease_limits     until when a cluster may live, from flags and balance
price_terms      price and lease of one cluster
billing_account  whose account pays, and keys that may not be used
quota            what an account may have at once, and requests for more
quota_output     quotas and requests as text, JSON and exit code
"""
