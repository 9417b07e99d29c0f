// Kafka's own consumer with its default settings, like client.py:
// java RollingClient BOOTSTRAP GROUP TOPIC JOURNAL
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class RollingClient {
    static final long COMMIT_NS = 200_000_000L;
    static FileChannel journal;
    static volatile boolean ending;

    /** Appends a line as journal.py reads it. On Linux, nanoTime is CLOCK_MONOTONIC. */
    static void note(String what, Object rest) {
        String line = System.nanoTime() + " " + what + " " + String.valueOf(rest).replaceAll("\\s+", " ") + "\n";
        try {
            journal.write(ByteBuffer.wrap(line.getBytes(StandardCharsets.UTF_8)));
        } catch (IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    public static void main(String[] args) throws Exception {
        journal = FileChannel.open(Path.of(args[3]), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[1]);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        if (!args[4].isEmpty()) settings.put("group.instance.id", args[4]);
        Thread waiting = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (IOException ended) {
                // as at the end of the input
            }
            ending = true;
        });
        waiting.setDaemon(true);
        waiting.start();
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            consumer.subscribe(List.of(args[2]), new ConsumerRebalanceListener() {
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    note("assigned", partitions.size());
                }

                public void onPartitionsRevoked(Collection<TopicPartition> partitions) { }
            });
            long due = System.nanoTime();
            while (!ending) {
                var found = consumer.poll(Duration.ofMillis(100));
                for (TopicPartition one : found.partitions()) note("record", one.partition());
                if (found.isEmpty() || System.nanoTime() < due) continue;
                long began = System.nanoTime();
                try {
                    consumer.commitSync();
                    note("committed", System.nanoTime() - began);
                } catch (Exception error) {
                    note("failed", error);
                }
                due = System.nanoTime() + COMMIT_NS;
            }
        }
    }
}
