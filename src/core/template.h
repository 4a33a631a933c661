/* template.h: the JSON template of a result event's payload: JSON in which a bind (":payload.sku")
 * stands for a value, or is spliced into a string. Pure. */
#ifndef CSN_CORE_TEMPLATE_H
#define CSN_CORE_TEMPLATE_H

#include "base/bytes.h"

/* Length of a bind's name that text begins with: letters, digits and _, parts joined by '.'; 0:
 * none begins here. */
size_t bind_name_size(csn_bytes text);

/* True when text is one JSON value once every bind in value position is replaced by a value. found
 * is called for each bind in order, with the offset and the size of ":name". On false, *ret_at is
 * the offset of what is not JSON. */
bool template_scan(csn_bytes text, void (*found)(void *arg, size_t offset, size_t size), void *arg,
                   size_t *ret_at);

#endif
