"""The public clients that block their caller: producer, consumer and admin, on a shared loop.

Owns the way from the caller's thread to the loop and back. Not what the clients do there: see
``tidelog.aio``. ``tidelog`` exports these classes.
"""
