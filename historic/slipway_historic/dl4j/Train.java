// Train a chain of layers in Deeplearning4j from the plain files of slipway_historic_program/raw_files.py. Never run by us: its packages could not be
// fetched. Java 11 or later starts this file as it is.
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.deeplearning4j.nn.conf.NeuralNetConfiguration;
import org.deeplearning4j.nn.conf.inputs.InputType;
import org.deeplearning4j.nn.conf.layers.ConvolutionLayer;
import org.deeplearning4j.nn.conf.layers.DenseLayer;
import org.deeplearning4j.nn.conf.layers.OutputLayer;
import org.deeplearning4j.nn.conf.layers.PoolingType;
import org.deeplearning4j.nn.conf.layers.SubsamplingLayer;
import org.deeplearning4j.nn.multilayer.MultiLayerNetwork;
import org.deeplearning4j.optimize.listeners.PerformanceListener;
import org.nd4j.linalg.activations.Activation;
import org.nd4j.linalg.api.ndarray.INDArray;
import org.nd4j.linalg.dataset.DataSet;
import org.nd4j.linalg.factory.Nd4j;
import org.nd4j.linalg.learning.config.Nesterovs;
import org.nd4j.linalg.learning.config.Sgd;
import org.nd4j.linalg.lossfunctions.LossFunctions;

public class Train {
    static final Path OUT = Path.of(System.getenv("SLIPWAY_OUT"));

    static FileChannel opened(String name) throws IOException {
        return FileChannel.open(OUT.resolve(".raw-" + name + ".part"));
    }

    static ByteBuffer read(FileChannel file, int numbers) throws IOException {
        ByteBuffer bytes = ByteBuffer.allocate(4 * numbers).order(ByteOrder.LITTLE_ENDIAN);
        while (bytes.hasRemaining() && file.read(bytes) >= 0) {}
        bytes.flip();
        return bytes;
    }

    static INDArray floats(FileChannel file, long... shape) throws IOException {
        int count = 1;
        for (long extent : shape) count *= (int) extent;
        float[] found = new float[count];
        read(file, count).asFloatBuffer().get(found);
        return Nd4j.create(found, shape, 'c');
    }

    static int at(String[] words, int place) {
        return Integer.parseInt(words[place]);
    }

    public static void main(String[] arguments) throws IOException {
        Map<String, String[]> plan = new HashMap<>();
        List<String[]> layers = new ArrayList<>();
        for (String line : Files.readAllLines(OUT.resolve(".raw-plan.part"))) {
            String[] words = line.split(" ");
            if (words[0].equals("layer")) layers.add(words);
            else plan.put(words[0], words);
        }
        String[] input = plan.get("input");
        double rate = Double.parseDouble(plan.get("learning_rate")[1]), momentum = Double.parseDouble(plan.get("momentum")[1]);
        double decay = Double.parseDouble(plan.get("weight_decay")[1]);
        // its momentum is Nesterov's: another update than that of the other frameworks, unless momentum is 0
        var list = new NeuralNetConfiguration.Builder().updater(momentum > 0 ? new Nesterovs(rate, momentum) : new Sgd(rate)).l2(decay).list();
        List<String[]> weighted = new ArrayList<>();
        for (int place = 0; place < layers.size(); place++) {
            String[] w = layers.get(place);
            boolean rectified = place + 1 < layers.size() && layers.get(place + 1)[1].equals("relu");
            Activation activation = rectified ? Activation.RELU : Activation.IDENTITY;
            switch (w[1]) {
                case "conv":
                    list.layer(new ConvolutionLayer.Builder(at(w, 5), at(w, 6)).nOut(at(w, 3)).stride(at(w, 7), at(w, 8))
                        .padding(at(w, 9), at(w, 10)).activation(activation).build());
                    weighted.add(w);
                    break;
                case "pool":
                    list.layer(new SubsamplingLayer.Builder(w[3].equals("max") ? PoolingType.MAX : PoolingType.AVG)
                        .kernelSize(at(w, 4), at(w, 5)).stride(at(w, 6), at(w, 7)).padding(at(w, 8), at(w, 9)).build());
                    weighted.add(null);
                    break;
                case "linear":
                    list.layer(place + 1 < layers.size()
                        ? new DenseLayer.Builder().nOut(at(w, 3)).activation(activation).build()
                        : new OutputLayer.Builder(LossFunctions.LossFunction.MCXENT).nOut(at(w, 3)).activation(Activation.SOFTMAX).build());
                    weighted.add(w);
                    break;
                case "relu":
                case "flatten": // both are part of the layers beside them
                    break;
                default:
                    throw new IllegalArgumentException("layer kind " + w[1]);
            }
        }
        int channels = at(input, 1), height = at(input, 2), width = at(input, 3), batch = at(plan.get("batch"), 1);
        MultiLayerNetwork net = new MultiLayerNetwork(list.setInputType(InputType.convolutional(height, width, channels)).build());
        net.init();
        try (FileChannel weights = opened("weights"); FileChannel images = opened("images"); FileChannel labels = opened("labels")) {
            for (int place = 0; place < weighted.size(); place++) {
                String[] w = weighted.get(place);
                if (w == null) continue;
                boolean conv = w[1].equals("conv");
                INDArray weight = conv ? floats(weights, at(w, 3), at(w, 4), at(w, 5), at(w, 6)) : floats(weights, at(w, 3), at(w, 4)).transpose();
                net.getLayer(place).setParam("W", weight);
                net.getLayer(place).setParam("b", floats(weights, 1, at(w, 3)));
            }
            net.setListeners(new PerformanceListener(1, true));
            for (int step = 0; step < at(plan.get("steps"), 1); step++) {
                INDArray x = floats(images, batch, channels, height, width);
                INDArray y = Nd4j.zeros(batch, at(plan.get("classes"), 1));
                var found = read(labels, batch).asIntBuffer();
                for (int row = 0; row < batch; row++) y.putScalar(row, found.get(row), 1.0);
                net.fit(new DataSet(x, y));
            }
        }
    }
}
