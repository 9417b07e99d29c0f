// A member by Kafka Streams, whose assignor is its own: java -cp CLASSES:JARS Streams BOOTSTRAP TOPIC GROUP NAME.
// When it commits is its own affair, so it never says `committed`.
import java.nio.file.Files;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.AppInfoParser;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.Record;

public class Streams {
    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    public static void main(String[] args) throws Exception {
        say("# kafka-streams " + AppInfoParser.getVersion());
        Properties settings = new Properties();
        settings.put("application.id", args[2]);
        settings.put("client.id", args[3]);
        settings.put("bootstrap.servers", args[0]);
        settings.put("state.dir", Files.createTempDirectory("streams").toString());
        settings.put("commit.interval.ms", "500");
        settings.put("consumer.session.timeout.ms", "6000");
        settings.put("consumer.heartbeat.interval.ms", "1500");
        settings.put("default.key.serde", Serdes.ByteArraySerde.class.getName());
        settings.put("default.value.serde", Serdes.ByteArraySerde.class.getName());
        StreamsBuilder builder = new StreamsBuilder();
        builder.<byte[], byte[]>stream(args[1]).process(() -> new ContextualProcessor<byte[], byte[], Void, Void>() {
            @Override public void process(Record<byte[], byte[]> one) {
                context().recordMetadata().ifPresent(at -> say("record " + at.partition() + " " + at.offset()));
            }
        });
        AtomicBoolean stopping = new AtomicBoolean();
        Thread ending = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException closed) { }
            stopping.set(true);
        });
        ending.setDaemon(true);
        ending.start();
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings)) {
            streams.start();
            String known = "";
            while (!stopping.get()) {
                TreeSet<Integer> held = new TreeSet<>();
                streams.metadataForLocalThreads().forEach(thread -> thread.activeTasks().forEach(task ->
                    task.topicPartitions().forEach(one -> held.add(one.partition()))));
                String now = "assigned " + String.join(",", held.stream().map(String::valueOf).toList());
                if (!now.equals(known)) say(known = now);
                Thread.sleep(100);
            }
            streams.close(Duration.ofSeconds(20));
        }
        say("closed");
    }
}
