% Train a chain of layers in MatConvNet from the plain files of slipway_historic_program/raw_files.py. Never run by us: there is no MATLAB here.
% cnn_train tells the mean of the losses since its epoch began, so that only the first one can be compared.
run('/opt/matconvnet/matlab/vl_setupnn.m');
addpath('/opt/matconvnet/examples');
place = [getenv('SLIPWAY_OUT') '/.raw-'];
plan = struct();
layers = {};
for line = splitlines(strtrim(string(fileread([place 'plan.part']))))'
  words = split(line, ' ');
  if words(1) == "layer"
    layers{end + 1} = words; %#ok<SAGROW>
  else
    plan.(words(1)) = double(words(2:end))';
  end
end
weights = fopen([place 'weights.part'], 'r', 'l');
shape = plan.input;                            % channels, height, width of what comes next
net = struct('layers', {{}}, 'meta', struct());
for index = 1:numel(layers)
  w = layers{index};
  n = double(w(4:end));
  switch w(2)
    case "conv"
      filters = fread(weights, n(1) * n(2) * n(3) * n(4), 'single=>single');
      filters = permute(reshape(filters, [n(4) n(3) n(2) n(1)]), [2 1 3 4]);
      bias = fread(weights, n(1), 'single=>single');
      net.layers{end + 1} = struct('type', 'conv', 'weights', {{filters, bias'}}, 'stride', n(5:6)', 'pad', [n(7) n(7) n(8) n(8)]);
      shape = [n(1), floor((shape(2:3) + 2 * n(7:8)' - n(3:4)') ./ n(5:6)') + 1];
    case "linear"                              % a convolution over all that there is
      filters = fread(weights, n(1) * n(2), 'single=>single');
      filters = permute(reshape(filters, [shape(3) shape(2) shape(1) n(1)]), [2 1 3 4]);
      bias = fread(weights, n(1), 'single=>single');
      net.layers{end + 1} = struct('type', 'conv', 'weights', {{filters, bias'}}, 'stride', 1, 'pad', 0);
      shape = [n(1) 1 1];
    case "pool"
      pad = [n(6) n(6) n(7) n(7)];
      kind = char(w(4));
      net.layers{end + 1} = struct('type', 'pool', 'method', kind, 'pool', n(2:3)', 'stride', n(4:5)', 'pad', pad);
      shape = [shape(1), floor((shape(2:3) + 2 * n(6:7)' - n(2:3)') ./ n(4:5)') + 1];
    case "relu"
      net.layers{end + 1} = struct('type', 'relu');
    case "dropout"
      net.layers{end + 1} = struct('type', 'dropout', 'rate', n(1));
  end
end
net.layers{end + 1} = struct('type', 'softmaxloss');
count = plan.steps * plan.batch;
images = fopen([place 'images.part'], 'r', 'l');
data = reshape(fread(images, count * prod(plan.input), 'single=>single'), [plan.input(3) plan.input(2) plan.input(1) count]);
labels = fopen([place 'labels.part'], 'r', 'l');
imdb.images.data = permute(data, [2 1 3 4]);
imdb.images.label = fread(labels, count, 'int32=>single')' + 1;
imdb.images.set = ones(1, count);
cnn_train(vl_simplenn_tidy(net), imdb, @(db, batch) next_batch(db, numel(batch)), ...
  'expDir', tempname, 'batchSize', plan.batch, 'numEpochs', 1, 'learningRate', plan.learning_rate, ...
  'momentum', plan.momentum, 'weightDecay', plan.weight_decay, 'plotStatistics', false, 'val', []);

function [images, labels] = next_batch(db, count)
% In the order of the cell, whatever cnn_train has shuffled.
persistent done
if isempty(done), done = 0; end
place = done + (1:count);
done = done + count;
images = db.images.data(:, :, :, place);
labels = db.images.label(place);
end
