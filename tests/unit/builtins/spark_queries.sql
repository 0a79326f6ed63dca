-- Queries that ask for nothing that is not there, one a line. They read the tables of spark_queries.py, and raw.unknown.
SELECT id FROM ops.t WHERE _file IS NOT NULL
SELECT t.id, t._metadata.file_name AS f FROM ops.t
SELECT _change_type, id FROM ops.t.changes
SELECT id, _pos AS p FROM ops.t
SELECT s.f, s.g.h AS h FROM ops.t
SELECT t.s.f AS f, ops.t.s.g.h AS h, ops.t.id FROM ops.t
SELECT spark_catalog.ops.t.id FROM ops.t
SELECT t.id FROM spark_catalog.ops.t
SELECT items[0].sku AS sku, attrs['k'] AS k, tags[0] AS tag FROM ops.t
SELECT items.sku AS skus FROM ops.t
SELECT transform(items, i -> i.qty + id) AS q, filter(tags, x -> x <> name) AS f FROM ops.t
SELECT aggregate(items, 0, (acc, i) -> acc + i.qty, acc -> acc * 10) AS total FROM ops.t
SELECT transform(items, (i, n) -> struct(i.sku AS a, n AS b)) AS q FROM ops.t
SELECT transform_values(attrs, (k, v) -> concat(k, v)) AS q FROM ops.t
SELECT transform(tags, x -> transform(items, y -> concat(x, y.sku))) AS q FROM ops.t
SELECT id, tag FROM ops.t LATERAL VIEW explode(tags) e AS tag
SELECT id, col FROM ops.t LATERAL VIEW explode(tags) e
SELECT id, e.col FROM ops.t LATERAL VIEW explode(tags) e
SELECT id, key, value FROM ops.t LATERAL VIEW explode(attrs) e
SELECT id, pos, x FROM ops.t LATERAL VIEW OUTER posexplode(tags) e AS pos, x
SELECT id, sku, qty FROM ops.t LATERAL VIEW inline(items) e
SELECT id, i.sku FROM ops.t LATERAL VIEW explode(items) e AS i
SELECT a, b FROM ops.t LATERAL VIEW explode(tags) x AS a LATERAL VIEW explode(split(a, ',')) y AS b
SELECT c0, c1 FROM ops.t LATERAL VIEW json_tuple(name, 'a', 'b') j
SELECT j.x FROM ops.t LATERAL VIEW json_tuple(name, 'a', 'b') j AS x, y
SELECT pos, col FROM (SELECT posexplode(tags) FROM ops.t) q
SELECT q.key FROM (SELECT explode(attrs) FROM ops.t) q
SELECT p, c FROM (SELECT posexplode(tags) AS (p, c) FROM ops.t) q
SELECT x FROM (SELECT explode(tags) AS x FROM ops.t) q
SELECT sku FROM (SELECT inline(items) FROM ops.t)
SELECT col0, col1 FROM (SELECT stack(2, 1, 'a', 2, 'b') FROM ops.t) q
SELECT e.x, t.id FROM ops.t, LATERAL explode(t.tags) AS e(x)
SELECT e.x, t.id FROM ops.t JOIN LATERAL explode(tags) AS e(x) ON true
SELECT col FROM explode(array(1, 2))
SELECT id FROM range(10)
SELECT r.id FROM range(10) AS r
SELECT v.a, b FROM VALUES (1, 2), (3, 4) AS v(a, b)
SELECT col1, col2 FROM VALUES (1, 2)
SELECT v.col1 FROM (VALUES (1, 2)) v
SELECT x.a FROM (VALUES (1, 2)) AS x(a, b)
SELECT l.n FROM ops.t, LATERAL (SELECT count(*) AS n FROM ops.u WHERE u.t_id = t.id) l
SELECT l.n FROM ops.t, LATERAL (SELECT name || kind AS n FROM ops.u) l
SELECT id FROM ops.t WHERE EXISTS (SELECT 1 FROM ops.u WHERE u.t_id = t.id AND kind = name)
SELECT id FROM ops.t WHERE id IN (SELECT t_id FROM ops.u WHERE value > score)
SELECT id, (SELECT max(value) FROM ops.u WHERE t_id = t.id) AS m FROM ops.t
SELECT id FROM ops.t a WHERE EXISTS (SELECT 1 FROM ops.u b WHERE b.t_id = a.id AND EXISTS (SELECT 1 FROM ops.u c WHERE c.id = b.id))
SELECT id + 1 AS n, n * 2 AS m, m + n AS k FROM ops.t
SELECT id AS n FROM ops.t GROUP BY n HAVING n > 1 ORDER BY n
SELECT count(*) AS n, name FROM ops.t GROUP BY name HAVING n > 1 ORDER BY n DESC, count(*)
SELECT name, count(*) AS n FROM ops.t GROUP BY ALL ORDER BY ALL
SELECT name, count(*) AS n FROM ops.t GROUP BY 1 ORDER BY 2
SELECT name, ok, count(*) AS n, grouping_id() AS g, grouping(name) AS h FROM ops.t GROUP BY name, ok WITH ROLLUP
SELECT name, ok, sum(id) AS n FROM ops.t GROUP BY GROUPING SETS ((name, ok), (name), ())
SELECT name, grouping__id AS g FROM ops.t GROUP BY CUBE (name, ok)
SELECT id, row_number() OVER (PARTITION BY name ORDER BY at DESC) AS rn FROM ops.t
SELECT id, sum(score) OVER w AS x FROM ops.t WINDOW w AS (PARTITION BY name ORDER BY at ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)
SELECT sum(score) FILTER (WHERE ok) AS x FROM ops.t
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY score) AS p FROM ops.t
SELECT listagg(name, ',') WITHIN GROUP (ORDER BY name) AS p FROM ops.t
SELECT current_date AS d, current_timestamp AS n, current_user AS u, user AS v, session_user AS w, current_catalog() AS c, localtimestamp AS l FROM ops.t
SELECT current_timezone() AS z, current_database() AS d, current_time AS t FROM ops.t
SELECT extract(YEAR FROM at) AS y, extract(week FROM day) AS w, date_part('year', at) AS p FROM ops.t
SELECT timestampadd(MONTH, 1, at) AS a, timestampdiff(HOUR, at, current_timestamp()) AS b, dateadd(DAY, 2, day) AS c, datediff(day, current_date()) AS e FROM ops.t
SELECT date_add(WEEK, 2, day) AS c, date_diff(MONTH, day, current_date()) AS e, datediff(SECOND, at, at) AS f FROM ops.t
SELECT date_trunc('month', at) AS m, trunc(day, 'MM') AS k, at + INTERVAL 1 DAY AS p, at - INTERVAL '1 2:3' DAY TO MINUTE AS q FROM ops.t
SELECT id FROM ops.t WHERE at > current_timestamp() - INTERVAL 7 DAYS AND day > DATE '2026-01-01' AND at < TIMESTAMP '2026-01-01 00:00:00'
SELECT id FROM ops.t VERSION AS OF 3 WHERE old_column = 1
SELECT id FROM ops.t TIMESTAMP AS OF '2026-01-01' WHERE old_column = 1
SELECT snapshot_id, committed_at FROM ops.t.snapshots
SELECT id, added_in_branch FROM ops.t.branch_audit
SELECT made_current_at, is_current_ancestor FROM ops.t.history
SELECT file_path, h.snapshot_id FROM ops.t.files f JOIN ops.t.history h ON true
SELECT x.id, y.other FROM ops.t x JOIN raw.unknown y ON x.id = y.id
SELECT id, other FROM ops.t, raw.unknown
SELECT id FROM ops.t WHERE EXISTS (SELECT 1 FROM raw.unknown k WHERE k.zz = something)
SELECT id, kind FROM ops.t JOIN ops.u USING (id)
SELECT t.id, u.id AS other, id AS mine FROM ops.t FULL OUTER JOIN ops.u USING (id)
SELECT id, t.name FROM ops.t LEFT SEMI JOIN ops.u ON t.id = u.t_id
SELECT id FROM ops.t LEFT ANTI JOIN ops.u ON kind = name
SELECT id FROM ops.t LEFT SEMI JOIN ops.u USING (id)
SELECT a.id, kind FROM ops.t a JOIN ops.u b ON a.id = b.t_id JOIN ops.u c USING (kind)
WITH x AS (SELECT id AS a, name FROM ops.t), y AS (SELECT a, name AS b FROM x) SELECT a, b FROM y
WITH x(p, q) AS (SELECT id, name FROM ops.t) SELECT p, x.q FROM x
WITH t AS (SELECT id AS only FROM ops.t) SELECT only FROM t
WITH ops AS (SELECT id AS only FROM ops.t) SELECT t.id, ops.only FROM ops.t, ops
WITH RECURSIVE r(n) AS (SELECT id FROM ops.t UNION ALL SELECT r.n + 1 FROM r WHERE n < 10) SELECT n FROM r
WITH RECURSIVE r AS (SELECT id AS n FROM ops.t UNION ALL SELECT n + 1 FROM r) SELECT n FROM r
WITH RECURSIVE r(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT n FROM r
SELECT p, q FROM (SELECT id, name FROM ops.t) AS x(p, q)
SELECT x.p FROM ops.t AS x(p, b, c, d, e, f, g, h, i, j, k)
SELECT * EXCEPT (id) FROM ops.t
SELECT q.name FROM (SELECT * EXCEPT (id) FROM ops.t) q
SELECT q.name, n FROM (SELECT *, count(*) OVER () AS n FROM ops.t) q
SELECT q.kind FROM (SELECT t.*, kind FROM ops.t JOIN ops.u ON t.id = u.t_id) q
SELECT f, g FROM (SELECT s.* FROM ops.t) q
SELECT q.other FROM (SELECT * FROM raw.unknown) q
SELECT x.other FROM (SELECT u.*, 1 AS one FROM raw.unknown u) x
SELECT id FROM ops.t UNION ALL SELECT t_id FROM ops.u ORDER BY id
SELECT id AS k FROM ops.t UNION SELECT t_id FROM ops.u ORDER BY k LIMIT 3
SELECT k FROM (SELECT id AS k FROM ops.t EXCEPT SELECT t_id FROM ops.u) q
SELECT k FROM ((SELECT id AS k FROM ops.t) UNION ALL (SELECT t_id FROM ops.u)) q
SELECT * FROM (SELECT name, id FROM ops.t) PIVOT (sum(id) AS total FOR name IN ('a' AS a, 'b' AS b)) WHERE a_total > 1
SELECT a, b FROM (SELECT name, id FROM ops.t) PIVOT (sum(id) FOR name IN ('a', 'b'))
SELECT p.a FROM ops.u PIVOT (sum(value) FOR kind IN ('a', 'b')) AS p
SELECT val, col FROM ops.u UNPIVOT (val FOR col IN (id, t_id))
SELECT id, up.val FROM ops.u UNPIVOT INCLUDE NULLS (val FOR col IN (t_id AS x)) AS up
FROM ops.t SELECT id WHERE ok
FROM ops.t |> WHERE ok |> SELECT id, name |> ORDER BY id
FROM ops.t |> EXTEND id + 1 AS n |> WHERE n > 3 |> SELECT n
FROM ops.t |> AGGREGATE count(*) AS c GROUP BY name |> WHERE c > 1
FROM ops.t |> AS x |> SELECT x.id
SELECT /*+ BROADCAST(x), REPARTITION(3, id) */ x.id FROM ops.t x JOIN ops.u y ON x.id = y.t_id
SELECT /*+ MERGE(x, y) */ x.id FROM ops.t x JOIN ops.u y ON x.id = y.t_id
SELECT /*+ REBALANCE(id), COALESCE(1), SHUFFLE_HASH(x) */ x.id FROM ops.t x
SELECT id FROM ops.t TABLESAMPLE (10 PERCENT) WHERE ok
SELECT id FROM ops.t TABLESAMPLE (BUCKET 4 OUT OF 10 ON name)
SELECT id FROM ops.t SORT BY name
SELECT id FROM ops.t DISTRIBUTE BY name SORT BY at
SELECT id FROM ops.t CLUSTER BY name
SELECT named_struct('a', id, 'b', name).a AS x, struct(id AS q, name).q AS y FROM ops.t
SELECT (SELECT struct(id AS i, name AS n)).i AS x FROM ops.t
SELECT map(name, id)[name] AS x, array(id, 1)[0] AS y FROM ops.t
SELECT from_json(name, 'a INT, b STRING').a AS x FROM ops.t
SELECT from_json(name, 'a INT', map('mode', 'FAILFAST')) AS x, schema_of_json('{"a": 1}') AS y FROM ops.t
SELECT CASE name WHEN 'a' THEN 1 ELSE 2 END AS x, if(ok, 1, 0) AS y, nvl(name, 'x') AS z, ifnull(id, 0) AS w FROM ops.t
SELECT CAST(name AS INT) AS x, try_cast(name AS DECIMAL(3, 1)) AS y, name::int AS z, bigint(name) AS w FROM ops.t
SELECT count(DISTINCT id, name) AS x, count_if(ok) AS y, approx_count_distinct(id) AS z, any_value(name) AS v FROM ops.t
SELECT max_by(name, at) AS x, collect_list(struct(id, name)) AS y, first(name, true) AS z, mode(name) AS m FROM ops.t
SELECT try_add(id, 1) AS x, my_udf(id) AS y, ops.my_udf(name) AS z, id div 2 AS d, id % 2 AS m FROM ops.t
SELECT mask(name, upperChar => 'Q') AS x, sentences(name) AS y FROM ops.t
SELECT "not a column" AS x, 'y' 'z' AS y, r'\d' AS z, X'1F' AS w, 1L AS l, 2.5BD AS b, 1e3 AS f FROM ops.t
SELECT id FROM ops.t WHERE name RLIKE 'a' AND name NOT LIKE '%b' ESCAPE '!' AND name ILIKE ANY ('a', 'b') AND id BETWEEN 1 AND 3
SELECT id FROM ops.t WHERE (id, name) IN (SELECT t_id, kind FROM ops.u)
SELECT id FROM ops.t WHERE name IS DISTINCT FROM 'a' AND id <=> 3 AND NOT ok AND ok IS TRUE
SELECT ID, Ops.T.Name, `T`.`NAME` AS n2 FROM OPS.t
SELECT * FROM ops.t a JOIN ops.u b ON a.id = b.t_id
SELECT t.* FROM ops.t WHERE t.id > 1
SELECT count(*) AS n, count(t.*) AS m FROM ops.t
SELECT struct(*) AS s, struct(t.*) AS r, to_json(struct(*)) AS j FROM ops.t
SELECT id FROM ops.t QUALIFY row_number() OVER (PARTITION BY name ORDER BY at) = 1
SELECT id, row_number() OVER (ORDER BY at) AS rn FROM ops.t QUALIFY rn = 1
SELECT x.id FROM (ops.t x JOIN ops.u y ON x.id = y.t_id) JOIN ops.u z ON z.id = x.id
SELECT x.id, v FROM ((SELECT id FROM ops.t) x CROSS JOIN (SELECT value AS v FROM ops.u) y)
SELECT id FROM (SELECT id FROM ops.t)
SELECT id, name FROM (SELECT id FROM ops.t), (SELECT kind AS name FROM ops.u)
SELECT id FROM ((SELECT id FROM ops.t))
SELECT id FROM (ops.t)
SELECT id FROM parquet.`/data/x`
SELECT a FROM my_tvf(1)
SELECT a FROM my_tvf(TABLE(ops.t))
SELECT TRANSFORM (id, name) USING 'cat' AS (a, b) FROM ops.t
SELECT session_window(at, '5 minutes').start AS s, count(*) AS n FROM ops.t GROUP BY session_window(at, '5 minutes')
SELECT input_file_name() AS f, monotonically_increasing_id() AS m, spark_partition_id() AS p FROM ops.t
SELECT `count(1)` FROM (SELECT count(1) FROM ops.t) q
SELECT count(*) FROM ops.t ORDER BY `count(1)`
SELECT q.`max(id)` FROM (SELECT max(id) FROM ops.t) q
SELECT explode(tags) FROM ops.t ORDER BY col
SELECT id FROM ops.t LIMIT 10 OFFSET 5
SELECT DISTINCT name FROM ops.t ORDER BY name
SELECT a.id FROM ops.t a, ops.t b WHERE a.id = b.id
SELECT id COLLATE UTF8_BINARY AS x FROM ops.t
SELECT name COLLATE UNICODE_CI AS x, collate(name, 'UTF8_LCASE') AS y FROM ops.t
SELECT overlay(name PLACING 'x' FROM 2 FOR 3) AS x, position('a' IN name) AS y, trim(BOTH 'x' FROM name) AS z, substring(name FROM 2 FOR 3) AS w FROM ops.t
SELECT ids.x FROM (SELECT transform(tags, x -> x) AS ids FROM ops.t) q
SELECT nt.id AS a, nt.items.sku AS b FROM ops.t AS nt
SELECT s.id FROM ops.t AS s
SELECT s.f FROM ops.t AS q
SELECT u.kind, m.n FROM ops.u u JOIN (SELECT t_id AS k, count(*) AS n FROM ops.u GROUP BY t_id) m ON m.k = u.id
SELECT id FROM ops.t WHERE id = ANY (SELECT t_id FROM ops.u)
SELECT id FROM ops.t WHERE id NOT IN (SELECT max(t_id) FROM ops.u GROUP BY kind HAVING kind = 'x')
SELECT id FROM ops.t ORDER BY (SELECT max(value) FROM ops.u WHERE u.t_id = t.id)
SELECT sum(id) OVER (PARTITION BY date_trunc('day', at) ORDER BY at RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW) AS x FROM ops.t
SELECT posexplode_outer(tags) AS (p, t2), id FROM ops.t
SELECT id, variant_get(parse_json(name), '$.a', 'int') AS v FROM ops.t
SELECT try_variant_get(parse_json(name), '$.a', 'int') AS v, is_variant_null(parse_json(name)) AS w FROM ops.t
SELECT make_interval(0, 1) AS i, make_date(2026, 1, 2) AS d, sequence(1, 3) AS s, array_sort(tags, (l, r) -> CASE WHEN l < r THEN -1 ELSE 1 END) AS o FROM ops.t
SELECT zip_with(tags, tags, (x, y) -> concat(x, y)) AS z, exists(tags, x -> x IS NULL) AS e, forall(tags, t -> t = name) AS a FROM ops.t
SELECT map_filter(attrs, (k, v) -> v > name) AS m, reduce(tags, '', (a, x) -> concat(a, x)) AS r FROM ops.t
SELECT `a.b`.c FROM (SELECT s AS `a.b` FROM ops.t) q
SELECT t.id, q.id AS i2 FROM ops.t INNER JOIN ops.u AS q ON t.id = q.t_id WHERE q.value IS NOT NULL
SELECT * FROM ops.t NATURAL JOIN ops.u
SELECT id FROM ops.t CROSS JOIN ops.u AS o(k, l, m, n) WHERE m = name
SELECT id FROM ops.t t1 JOIN LATERAL (SELECT max(value) AS mv FROM ops.u WHERE t_id = t1.id AND ok) x ON mv > score
SELECT div AS x FROM (SELECT 1 AS div)
SELECT id AS `select`, name AS `from` FROM ops.t ORDER BY `select`
SELECT date AS x FROM (SELECT day AS date FROM ops.t)
SELECT timestamp, year, month FROM (SELECT at AS timestamp, year(at) AS year, month(at) AS month FROM ops.t)
SELECT first, last, key, value, type, end FROM (SELECT id AS first, id AS last, id AS key, id AS value, id AS type, id AS end FROM ops.t)
SELECT array_contains(tags, name) AS c, cardinality(tags) AS d, element_at(items, 1).sku AS e FROM ops.t
SELECT id FROM ops.t WHERE ok AND (SELECT count(*) FROM ops.u WHERE u.t_id = ops.t.id) > 1
SELECT stack(2, 'a', id, 'b', id) AS (k, v) FROM ops.t
SELECT inner_q.x FROM (SELECT * FROM (SELECT id AS x FROM ops.t) a) inner_q
SELECT id, lag(name, 1) IGNORE NULLS OVER (ORDER BY at) AS p, nth_value(name, 2) OVER (ORDER BY at) AS q FROM ops.t
SELECT `ID`, `t`.`Name`, T.ID AS i2 FROM ops.T
SELECT count FROM (SELECT count(*) AS count FROM ops.t)
SELECT id x, name y FROM ops.t ORDER BY x, y
SELECT a.n FROM (WITH c AS (SELECT id AS n FROM ops.t) SELECT n FROM c) a
WITH c AS (SELECT id, name FROM ops.t) SELECT x.id, y.name FROM c x JOIN c y ON x.id = y.id
WITH c AS (SELECT id FROM ops.t), d AS (SELECT id FROM c UNION ALL SELECT t_id FROM ops.u) SELECT id FROM d
WITH c AS (SELECT s, items FROM ops.t) SELECT c.s.f, s.g.h AS h, c.items[0].sku AS i FROM c
SELECT x.id, x.tag FROM (SELECT id, explode(tags) AS tag FROM ops.t) x WHERE tag <> ''
SELECT tag.col FROM ops.t LATERAL VIEW explode(tags) tag
SELECT q.id, tag FROM (SELECT id, tags FROM ops.t) q LATERAL VIEW explode(q.tags) e AS tag
WITH c AS (SELECT id, tags FROM ops.t) SELECT id, tag FROM c LATERAL VIEW explode(tags) e AS tag
SELECT id FROM ops.t WHERE EXISTS (SELECT 1 FROM ops.u LATERAL VIEW explode(t.tags) e AS tag WHERE tag = kind)
SELECT id FROM ops.t WHERE id IN (SELECT a.id FROM ops.u a LEFT SEMI JOIN ops.t b ON a.t_id = b.id AND b.ok)
SELECT id FROM ops.t INTERSECT SELECT t_id FROM ops.u EXCEPT SELECT id FROM ops.u
SELECT name AS id, count(*) AS n FROM ops.t GROUP BY name HAVING id <> '' ORDER BY n
SELECT x.a FROM ops.t JOIN (VALUES (1, 'x')) AS x(a, b) ON x.a = id AND b = name
SELECT id, sum(score) OVER (ORDER BY m) AS r FROM (SELECT id, score, date_trunc('month', at) AS m FROM ops.t)
SELECT t.id AS x FROM ops.t t ORDER BY t.name, x
SELECT name FROM ops.t GROUP BY name ORDER BY max(at), count(DISTINCT id)
SELECT a.id FROM ops.t AS a WHERE a.id IN (SELECT id FROM ops.u WHERE ops.u.t_id = a.id)
SELECT id FROM ops.t WHERE (SELECT first(kind) FROM ops.u WHERE t_id = score) = 'x'
SELECT name FROM ops.t GROUP BY name HAVING count(*) > (SELECT count(*) FROM ops.u WHERE kind = name)
SELECT q.`a b` FROM (SELECT id AS `a b` FROM ops.t) q
SELECT id FROM ops.t WHERE NOT EXISTS (SELECT u.* FROM ops.u WHERE u.t_id = t.id)
SELECT id FROM ops.t ORDER BY 1, name NULLS LAST LIMIT ALL
WITH c AS (SELECT name, id FROM ops.t) SELECT p.a FROM c PIVOT (sum(id) FOR name IN ('a', 'b')) AS p
WITH c AS (SELECT name, id FROM ops.t) SELECT a, b FROM c PIVOT (sum(id) FOR name IN ('a', 'b'))
SELECT x.id FROM (FROM ops.t SELECT id) x
WITH c AS (FROM ops.t SELECT id) SELECT id FROM c
SELECT id FROM ops.`t.branch_x`
SELECT id FROM ops.t JOIN ops.u b USING (id) WHERE b.id > 1 AND kind = 'x'
SELECT t.id FROM ops.t LEFT JOIN LATERAL (SELECT kind FROM ops.u WHERE t_id = t.id LIMIT 1) k ON true WHERE k.kind IS NULL
SELECT CASE WHEN (SELECT max(id) FROM ops.u) > t.id THEN name ELSE (SELECT min(kind) FROM ops.u WHERE u.t_id = t.id) END AS x FROM ops.t
SELECT a.id FROM ops.t a JOIN ops.u b ON a.id = b.t_id AND b.id IN (SELECT c.id FROM ops.u c WHERE c.t_id = a.id AND c.kind = b.kind)
SELECT id FROM ops.t t WHERE t.id IN (SELECT t.id FROM ops.u t WHERE t.t_id > 3)
SELECT m.k, m.v FROM ops.t LATERAL VIEW explode(attrs) m AS k, v WHERE m.k = name
SELECT size(tags) AS n, array_join(tags, ',') AS j, map_keys(attrs) AS k, attrs.k AS kk FROM ops.t
SELECT inline_outer(items) AS (a, b), id FROM ops.t
SELECT a, b FROM (SELECT inline_outer(items) AS (a, b) FROM ops.t)
SELECT from_unixtime(id) AS a, unix_timestamp(at) AS b, to_timestamp(name) AS c, to_date(name, 'yyyy') AS d FROM ops.t
SELECT bool_or(ok) AS a, every(ok) AS b, some(ok) AS c, mean(score) AS d, std(score) AS e, corr(score, id) AS f FROM ops.t
SELECT width_bucket(score, 0, 10, 5) AS w, nvl2(name, id, 0) AS n, decode(name, 'a', 1, 2) AS d, zeroifnull(id) AS z FROM ops.t
SELECT hash(id, name) AS h, uuid() AS u, rand() AS r, sha2(name, 256) AS s, base64(CAST(name AS BINARY)) AS b FROM ops.t
SELECT id FROM ops.t WHERE name LIKE ALL ('a%', '%b') OR name = SOME (SELECT kind FROM ops.u)
SELECT parse_url(name, 'HOST') AS h, xpath_string(name, 'a/b') AS x, str_to_map(name, ',', ':')['a'] AS m FROM ops.t
SELECT t.id, u.* FROM ops.t CROSS JOIN LATERAL (SELECT kind, value FROM ops.u WHERE u.t_id = t.id) u
SELECT first_value(name) OVER (PARTITION BY id ORDER BY at) AS f, last_value(name, true) OVER (ORDER BY at) AS l FROM ops.t
SELECT count(*) OVER w1 AS a, sum(id) OVER (w1 ORDER BY at) AS b FROM ops.t WINDOW w1 AS (PARTITION BY name)
SELECT max(struct(at, name)).name AS latest, max(struct(at, id AS n)).n AS m FROM ops.t
SELECT k.name AS x FROM (SELECT max(struct(at, name)) AS k FROM ops.t) q
SELECT q.k.name AS x FROM (SELECT max_by(struct(name), at) AS k FROM ops.t) q
SELECT e.sku, e.qty, t.id FROM ops.t JOIN LATERAL inline(t.items) AS e
SELECT e.* FROM ops.t, LATERAL explode(attrs) AS e(k, v)
SELECT id, e.pos, e.col FROM ops.t, LATERAL posexplode(tags) AS e
SELECT sum(u.value) AS v FROM ops.t t, ops.u u WHERE t.id = u.t_id GROUP BY t.day, date_trunc('day', t.at)
SELECT DISTINCT t.name, u.kind FROM ops.t RIGHT JOIN ops.u ON t.id = u.t_id AND (t.ok OR u.value IS NULL)
SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY name ORDER BY at DESC) AS rn FROM ops.t) WHERE rn = 1
SELECT id, name FROM ops.t WHERE (id, at) IN (SELECT t_id, max(current_timestamp()) FROM ops.u GROUP BY t_id)
SELECT a.id AS id, b.id AS b_id, c.n FROM ops.t a LEFT JOIN ops.u b ON b.t_id = a.id LEFT JOIN (SELECT t_id, count(1) n FROM ops.u GROUP BY 1) c ON c.t_id = a.id
SELECT name FROM ops.t WHERE day = current_date - 1 AND at >= current_timestamp - INTERVAL '2' HOUR
SELECT id, IF(name IS NULL, 'x', name) AS n, name IN ('a', 'b') AS i, id % 2 = 0 AS even, -id AS neg, ~id AS inv, id & 1 AS bit FROM ops.t
SELECT transform(items, i -> i.sku)[0] AS first_sku, exists(items, i -> i.qty > id) AS some_big, filter(items, i -> i.qty > 1)[0].sku AS f FROM ops.t
SELECT x.t.f FROM (SELECT s AS t FROM ops.t) x
SELECT t.f FROM (SELECT s AS t FROM ops.t) x
SELECT t.f FROM (SELECT s AS t FROM ops.t) t
