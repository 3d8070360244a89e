-- Train a chain of layers in Torch7 from the plain files of slipway_historic_program/raw_files.py. Ran on Torch7 from its sources,
-- 2026-11-24, with the losses of PyTorch; no test runs it, since no package of Torch7 is left.
require 'nn'
require 'optim'

torch.setdefaulttensortype('torch.FloatTensor')
torch.setnumthreads(tonumber(os.getenv('OMP_NUM_THREADS') or '1'))
local place = os.getenv('SLIPWAY_OUT') .. '/.raw-'

local plan, layers = {}, {}
for line in io.lines(place .. 'plan.part') do
  local words = {}
  for word in line:gmatch('%S+') do
    table.insert(words, tonumber(word) or word)
  end
  if words[1] == 'layer' then
    table.insert(layers, words)
  else
    plan[words[1]] = words[2]
    if words[1] == 'input' then plan.input = {words[2], words[3], words[4]} end
  end
end

local function opened(name)
  return torch.DiskFile(place .. name .. '.part', 'r'):binary():littleEndianEncoding()
end

local weights, images, labels = opened('weights'), opened('images'), opened('labels')
local function fill(module)
  module.weight:copy(torch.FloatTensor(weights:readFloat(module.weight:nElement())):viewAs(module.weight))
  module.bias:copy(torch.FloatTensor(weights:readFloat(module.bias:nElement())))
  return module
end

local kinds = {
  conv = function(w) return fill(nn.SpatialConvolution(w[5], w[4], w[7], w[6], w[9], w[8], w[11], w[10])) end,
  linear = function(w) return fill(nn.Linear(w[5], w[4])) end,
  pool = function(w)
    local kind = w[4] == 'max' and nn.SpatialMaxPooling or nn.SpatialAveragePooling
    return kind(w[6], w[5], w[8], w[7], w[10], w[9])
  end,
  relu = function() return nn.ReLU() end,
  dropout = function(w) return nn.Dropout(w[4]) end,
  flatten = function() return nn.View(-1):setNumInputDims(3) end,
}
local model, criterion = nn.Sequential(), nn.CrossEntropyCriterion()
for _, words in ipairs(layers) do
  model:add(kinds[words[2]](words))
end

local parameters, gradients = model:getParameters()
local state = {learningRate = plan.learning_rate, momentum = plan.momentum, dampening = 0, weightDecay = plan.weight_decay}
local timer = torch.Timer()
for step = 1, plan.steps do
  timer:reset()
  local channels, height, width = plan.input[1], plan.input[2], plan.input[3]
  local x = torch.FloatTensor(images:readFloat(plan.batch * channels * height * width)):view(plan.batch, channels, height, width)
  local y = torch.IntTensor(labels:readInt(plan.batch)):type('torch.FloatTensor'):add(1)
  local data_s, loss = timer:time().real, nil
  optim.sgd(function()
    gradients:zero()
    loss = criterion:forward(model:forward(x), y)
    model:backward(x, criterion:backward(model.output, y))
    return loss, gradients
  end, parameters, state)
  print((' | Epoch: [1][%d/%d]    Time %.6f  Data %.6f  Err %1.6f'):format(step, plan.steps, timer:time().real, data_s, loss))
  io.stdout:flush()
end
