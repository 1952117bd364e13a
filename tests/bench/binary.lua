-- wrk script: 64 different requests of bagserve (or any server of the V2 protocol), sent in turn.
--
--   wrk -t1 -c64 -d5s -s binary.lua http://127.0.0.1:8000 -- model=items rows=100000 bags=1 ids=10
--
-- What may follow "--", with what stands where nothing follows:
--   model=items rows=100000   the model, and how many rows its table has
--   bags=1 ids=10             bags in a request, and ids in each bag
--   bodies=64 seed=1          how many different requests, and of which ids
--   json=1                    JSON both ways; binary tensors otherwise
--
-- The last line is JSON for other programs: requests, errors, seconds and latencies.
local ffi = require("ffi")

local function read_options(arguments)
    local options = {model = "items", rows = 100000, bags = 1, ids = 10, bodies = 64, seed = 1}
    for _, argument in ipairs(arguments) do
        local key, value = argument:match("^%-*(%w+)=(.+)$")
        if not key then
            error("'" .. argument .. "' is not key=value")
        end
        options[key] = tonumber(value) or value
    end
    return options
end

-- Lua's numbers are doubles; the ids in the body are 64-bit integers, low byte first.
local function random_ids(options)
    local ids = ffi.new("int64_t[?]", options.bags * options.ids)
    for i = 0, options.bags * options.ids - 1 do
        ids[i] = math.random(0, options.rows - 1)
    end
    return ids
end

local function first_of_bags(options)
    local offsets = ffi.new("int64_t[?]", options.bags)
    for bag = 0, options.bags - 1 do
        offsets[bag] = bag * options.ids
    end
    return offsets
end

local function json_array(numbers, count)
    local texts = {}
    for i = 0, count - 1 do
        texts[i + 1] = string.format("%d", tonumber(numbers[i]))
    end
    return "[" .. table.concat(texts, ",") .. "]"
end

local function input(name, numbers, count, json)
    local value
    if json then
        value = '"data":' .. json_array(numbers, count)
    else
        value = string.format('"parameters":{"binary_data_size":%d}', count * 8)
    end
    return string.format('{"name":"%s","datatype":"INT64","shape":[%d],%s}', name, count, value)
end

-- The request as wrk sends it: the JSON, then the tensors in the order of the inputs.
local function make_request(options)
    local count = options.bags * options.ids
    local ids, offsets = random_ids(options), first_of_bags(options)
    local body = '{"inputs":[' .. input("indices", ids, count, options.json) .. "," ..
        input("offsets", offsets, options.bags, options.json) .. "]"
    local headers = {}
    if options.json then
        body = body .. "}"
    else
        body = body .. ',"parameters":{"binary_data_output":true}}'
        headers["Inference-Header-Content-Length"] = #body
        body = body .. ffi.string(ids, count * 8) .. ffi.string(offsets, options.bags * 8)
    end
    return wrk.format("POST", "/v2/models/" .. options.model .. "/infer", headers, body)
end

local requests = {}
local next_request = 0

function init(arguments)
    local options = read_options(arguments)
    math.randomseed(options.seed)
    for i = 1, options.bodies do
        requests[i] = make_request(options)
    end
end

function request()
    next_request = next_request % #requests + 1
    return requests[next_request]
end

function done(summary, latency)
    local errors = summary.errors
    io.write(string.format(
        '{"requests":%d,"seconds":%.3f,"per_s":%.1f,"p50_us":%d,"p99_us":%d,"p999_us":%d,' ..
        '"not_200":%d,"lost":%d}\n',
        summary.requests, summary.duration / 1e6, summary.requests / summary.duration * 1e6,
        latency:percentile(50), latency:percentile(99), latency:percentile(99.9), errors.status,
        errors.connect + errors.read + errors.write + errors.timeout))
end
