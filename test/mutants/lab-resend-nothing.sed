# file: src/cli/reconcile.c
# killer: lab A11
# what: what is missing is not sent again
s/^        st = resend_row(d, x->seq\[i\], ret_resent, err);/        st = x->seq[i] ? CSN_OK : resend_row(d, x->seq[i], ret_resent, err);/
