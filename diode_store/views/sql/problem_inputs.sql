-- One row per input of each problem, with the part that it plays.
CREATE VIEW problem_inputs AS
SELECT
    problem_id,
    position,
    coalesce(roles_of(op)[position + 1], 'input') AS role,
    input ->> '$[0]' AS dtype,
    json_extract(input, '$[1]')::BIGINT[] AS size,
    json_extract(input, '$[2]')::BIGINT[] AS stride
FROM (
    SELECT id AS problem_id, op, unnest(inputs::JSON[]) AS input, generate_subscripts(inputs::JSON[], 1) - 1 AS position
    FROM (SELECT id, op, inputs::JSON AS inputs FROM problems)
)
ORDER BY problem_id, position;
