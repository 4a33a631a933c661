/* licence */
-- handler reserve
UPDATE stock SET available = available - :payload.qty
  WHERE sku = :payload.sku AND note <> 'x :nope ; ''y' AND available >= :payload.qty; -- why
-- expect rows 1 else goto reject
INSERT INTO reservation(order_id, sku, qty, state) VALUES (:aggregate_id, :payload.sku, :payload.qty, '已预占');
-- emit InventoryReserved for stock :payload.sku payload {"order": :aggregate_id, "sku":"s:payload.sku", "qty"::payload.qty, "a":[true,null,-1.5e3]}
-- verdict done "took :payload.qty"
-- label reject
-- emit InventoryRejected for stock :payload.sku payload {"order": :aggregate_id, "reason": "out of stock"}
-- verdict refused
